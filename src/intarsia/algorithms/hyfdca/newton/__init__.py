"""Newton's method in the primal: the phase of HyFDCA that finishes with a certificate.

Read `server` first: it has a round's steps. `point` is what a client keeps and `client` what it
does; `frame` holds the bases in which others see rows. `direction` finds directions, and steps
along them; `shares` and `encrypted` find Newton's system where sums are sealed. `interior_point`
goes on where the method stands still.
"""
