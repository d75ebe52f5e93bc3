"""Model backends: one module per wire format, each an implementation of `mainspring.ports.Provider`.

Nothing is imported here. Whoever uses a backend imports its module, so the others cost no start-up time.
"""
