"""The settings on the command line, in the reference and in editors."""
