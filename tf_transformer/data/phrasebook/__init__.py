"""The built-in corpus: a synchronous grammar of German and English phrasebook sentences.

A synchronous grammar derives two sentences at once. Each rule has a German and an English side,
and both are filled from the same choices, in the order that each language asks for (Aho and
Ullman, "Syntax directed translations and the pushdown assembler", 1969; Chiang, "Hierarchical
phrase-based translation", 2007). Here the `lexicon` is a set of tables; a `noun_phrase` and a
`clause` know both languages' forms and word orders; `patterns` and `templates` are the sentence
patterns, and the `grammar` draws from them.

The sentences cover the verb in second, first and last place, inversion, separable verbs, perfect,
modal verbs, agreement in gender, case and number, `kein` and `nicht`, numbers, prices and clock
times, questions with English do-support, requests, imperatives, subordinate and relative clauses,
dative verbs, comparison and possessives. German leaves its translation no choice: the time of a
sentence tells `I am buying` from `I will buy` and `I buy`, and `Sie` is always the polite `you`.
"""

from tf_transformer.data.phrasebook.grammar import phrasebook

__all__ = ["phrasebook"]
