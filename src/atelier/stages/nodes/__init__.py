"""Several machines that train one run (docs/many-machines.md).

Node 0 has the run: it prepares, measures, evaluates, exports. While it trains it keeps a meeting
place (`meeting.py`), and the other nodes come there and help (`helper.py`). Who is gone, however
that came, is noticed by all others: a life of the trainer ends on every node or on none.
"""
