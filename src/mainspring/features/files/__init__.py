"""Files that clients upload, and refer to by their ids."""
