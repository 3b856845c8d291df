"""Starts the loops as processes, keeps them alive, ends them in order, and says how they are."""
