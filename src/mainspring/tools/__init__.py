"""Tools that run on the server: Python functions, and what every kind of tool needs to have its arguments read and checked."""
