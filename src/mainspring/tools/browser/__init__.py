"""A browser for tools: Chromium in the sandbox, without a network, and a proxy of ours as its only way out."""
