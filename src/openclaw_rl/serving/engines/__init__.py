"""Engine adapters, and what they share: the protocol, rendering and tool calls."""
