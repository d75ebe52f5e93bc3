"""The console: the pages that the server shows to browsers. Their sources are in `console/`, at the top of the project."""
