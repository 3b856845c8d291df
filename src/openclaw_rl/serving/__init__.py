"""The serving loop: the gateway that clients talk to, and the engines that answer."""
