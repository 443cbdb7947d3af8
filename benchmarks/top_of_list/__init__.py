"""Who wants a high average precision: what should they do, and when does optimising it directly pay?

    FCCO_DATA=... PYTHONPATH=benchmarks python -m top_of_list [--only linear|network] [--tasks a,b] [--quick]

writes docs/top_of_list.md, docs/top_of_list.csv and two figures. Every task is binary and is split at random into
training, validation and test parts (60/20/20), once for every seed. Linear models (:mod:`top_of_list._linear`,
:mod:`top_of_list._linear_ours`) and small networks (:mod:`top_of_list._network`, :mod:`top_of_list._network_ours`) are
compared apart. The library's defaults were chosen on the tasks of the group "choosing", so the claims are made about
the group "reporting".

Finished work is kept in build/top_of_list/cache.jsonl, a job for every task, method and seed, and not done again.
``--finished`` runs nothing and writes the page of what is there. A job's key covers the content of its data, its
settings and the code that it leads to. The usual methods lead to no code of the library, so their results stay valid
when the library changes. Without FCCO_DATA only the tasks run that ship with scikit-learn and Python.
"""
