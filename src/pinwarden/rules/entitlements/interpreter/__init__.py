"""Follows a program without running it: what each name can stand for, and who calls whom.

One class does it, in layers that each hold one subject: ``Engine`` is made of statements, these of definitions and
branches, these of expressions, these of calls and attributes. A layer calls only what its own or a lower file defines,
or what ``EngineBase`` declares.
"""
