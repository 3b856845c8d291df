"""What a user may do with the conversations that are theirs: see, export, import and delete them."""
