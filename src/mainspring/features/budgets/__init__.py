"""Autonomy budgets: how far an agent may go on its own, and how much it may use.

`budget` is the budget, counted in `amounts`; `budget_scope` and `enforce` decide about a step, `budget_policy` asks them at
the gate; `plan` chooses the budget of a run after `preflight`, and `ledger` shares one budget among runs.
"""
