"""The demo: three notes, the tools to work with them (`tools`), a script that plays the model, and its run on a server."""
