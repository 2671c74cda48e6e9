"""Models of other engines, read into run directories: a file for each format, and a name table."""
