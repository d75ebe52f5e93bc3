"""The features of the product, one folder each: model, routes, commands, settings and a `part.py`."""
