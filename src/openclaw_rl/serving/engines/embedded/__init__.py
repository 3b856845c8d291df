"""The embedded engine: Transformers on CPU or one GPU, in a process of its own.

Transformers' own continuous batching was looked at (5.24): it can return token ids and log-probabilities, but it
neither switches LoRA adapters per request nor scores given tokens nor takes a seed per request; hence our own here.

    client ──HTTP──► app ──► service ──► scheduler (one compute thread) ──► runner ──► cache, adapters
"""

ENGINE_ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
"""What the environment must hold *before* torch is imported in the engine's process: threads that wait sleep.

Spinning OpenMP threads would take the very core on which the trainer works.
"""
