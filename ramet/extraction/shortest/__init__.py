"""The shortest way, in tokens, to complete an answer that its budget cut: found by search, and shown to be shortest.

symbols  what a schema lets follow, as symbols with bytes as their first step
machine  the automaton over bytes that they make, built as far as it is walked
search   distances in tokens over that automaton, and the search over the constraint's matcher that they guide
"""
