"""The sandbox: runs code that a model wrote on this machine, isolated from it.

`probe.open_sandbox` finds the strongest backend that holds here; `ports.Sandbox` says what all of them promise.
`kubernetes` runs it in pods instead.
"""
