"""Where code that a model wrote is run: on this machine, but apart from it.

`probe.open_sandbox` finds the strongest backend that holds here; `ports.Sandbox` says what all of them promise.
"""
