"""Vector stores: files that are searched, by words and by meaning."""
