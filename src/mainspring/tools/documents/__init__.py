"""The text of documents: PDF, office files, web pages, and whatever else is text."""
