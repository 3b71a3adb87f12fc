"""What the people who run a federation do with its kits, beside running them.

Read `joining` first: how a site gets a kit whose key it made itself. `archive` writes and reads the
single files that are handed over or kept.
"""
