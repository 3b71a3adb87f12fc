"""Propose what an experiment file says of tables that nobody has described.

`proposal` goes through all choices: `first_look` at each table, `id_choice`, `label_choice`, what
is one feature at several tables (`one_feature`), what is none (`unfit_columns`), what is a category
(`codes_or_amounts`). `experiment_text` writes the file.
"""
