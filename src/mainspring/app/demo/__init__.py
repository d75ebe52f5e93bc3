"""What `mainspring demo` shows: three notes, the tools to work with them (`tools`), and a script that plays the model."""
