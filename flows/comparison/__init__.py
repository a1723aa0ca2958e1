"""Several strategies on one fleet and one profile: which method fits these devices?

Each strategy is an ordinary run of the store, planned by the clock and trained if asked; `compare` runs them one after
the other, `figures` reads what they made, `archive` keeps the comparison as a document beside the runs, and `pages`
shows it. A comparison holds all its figures, so that it outlives the runs that it names.
"""
