"""The features of the product, one folder each: model, routes, commands and settings."""
