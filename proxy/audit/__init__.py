"""What the record says about money.

own attempt   one attempt as the bill sees it: when, which model, how it ended, the tokens that the provider stated (attempts.py)
tokens        counts by class; input holds cached and cache-written ones, output holds reasoning ones (tokens.py)
cost          known from stated tokens, or bounds [lower, upper] with the reason (prices.py, bounds.py)
cell          what an export adds up: one model, key, tier and window of time (proxy/reconcile)
"""
