"""Several engines of one kind as one: sticky routing, health, draining, and versions that reach all of them."""
