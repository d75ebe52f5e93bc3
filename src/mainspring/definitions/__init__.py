"""Files that people write, read into structs with the line of every mistake."""
