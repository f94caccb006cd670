"""How long candidate and reference take, and how sure their ratio is.

constants     every number of the clock, with its unit and its reason
requests      makes requests: fresh inputs, and the outputs that are expected
clock         sends one request and measures it
rounds        sends many requests, with the device to itself, and checks what comes back
timer         which requests are sent, and when: the reference alone, then both in turn
speedup       the speedup and its interval, from what was measured
records       what was measured
"""
