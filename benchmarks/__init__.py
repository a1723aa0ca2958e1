"""What the project promises about speed, measured: `python -m benchmarks.NAME [--quick]`.

May import everything. Each benchmark prints a table, then one line of JSON (`report`); what is compared is measured in
one run, in turns, and given as a ratio with its spread. Set aside: comparing with numbers of an earlier run or another
machine (noise and frequency differ more than what is looked for).
"""
