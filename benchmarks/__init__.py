"""What measures speed; each module is one benchmark with `run(arguments) -> figures`."""
