"""The macros and enumerators of the tables as plain numbers, a file for each table.

They are for code that must start fast: to make an enumeration takes longer than a worker may spend on a number. What is
not in a table does not belong here: `make constants` makes each file from its table, and a test compares the two.
"""
