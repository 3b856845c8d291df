"""Client dialects: bodies to requests, and answers to bodies. Pure."""
