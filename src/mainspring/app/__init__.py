"""The composition: settings in, a running engine or server out."""
