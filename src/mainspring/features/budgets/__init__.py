"""Autonomy budgets: how far an agent may go on its own, and how much it may use.

`budget` says what a budget is, `enforce` decides, `policy` brings it to the gate, `preflight` looks at it before a run, and
`ledger` shares one budget among runs.
"""
