"""Runs on the command line: started, resumed, listed, shown."""
