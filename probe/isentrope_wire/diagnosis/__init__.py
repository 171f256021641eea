"""How a run is doing: the course of its entropy, what pulls it, and whether a pushed control keeps its promise.

- `course`: from which loss on a run is watched or acted on, the slope of its entropy, the tokens that pull most
- `slope`: the slope of noisy values
- `verdict`: what a control is predicted to do when it is pushed, and what it did over its first steps
- `health`: the health line: level, sentence, cause and suggestion
"""
