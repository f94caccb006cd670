"""How long candidate and reference take, and how certain the speedup is.

requests      makes requests: fresh inputs and expected outputs
clock         sends one request and measures it
rounds        sends many requests while no other process uses the device, and checks the answers
timer         decides which requests are sent, and when: the reference alone, then both in turn
speedup       computes the speedup and its interval from the measured times

``examiner/timing_constants.py`` has every constant of the clock, and ``timing_records.py`` what was measured.
"""
