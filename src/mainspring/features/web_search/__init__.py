"""The web, searched for models: the hosted tool `web_search`, over a search service that the operator names."""
