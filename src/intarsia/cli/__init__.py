"""The command line: arguments in, a run, tables on standard error, results on standard output.

Read `main` first: the commands, and how an error becomes one sentence and an exit status.
`finished_runs` has the commands on what runs left; `federation` and `keys` are groups of commands,
`first_steps` and `doctor` have those of a newcomer; `tables` prints, `console` says where to.
"""
