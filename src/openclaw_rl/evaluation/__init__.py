"""Does it learn, and does nobody notice: the simulated user, its ledger, the demo and its figures."""
