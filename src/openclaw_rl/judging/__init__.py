"""Turns into judgements: judges, votes, hints, and the loop that runs them."""
