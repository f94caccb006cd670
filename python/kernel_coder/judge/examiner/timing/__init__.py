"""How long candidate and reference take, and how sure their ratio is.

constants     every number of the clock, with its unit and its reason
records       what was measured: costs of a request, the reference alone, both in turn
requests      makes requests: fresh inputs, and the outputs that are expected
clock         sends one request and measures it
answers       sends many requests, with the device to itself, and checks what comes back
rhythm        how many calls a request has
baseline      the reference alone, while no other program uses the GPU
estimate      the speedup and its interval, from what was measured
timer         the order of it all
interval      medians and their confidence intervals
"""
