"""The systems of papers, written as code of your own is: against the extension points, and named by address.

- `tandem.papers.sqs` (SQS): the codecs K-SQS and C-SQS; preset `sqs`.
- `tandem.papers.qs` (QS): its lattice, its heuristic and its learned policy for the length of proposals; preset `qs`.
- `tandem.papers.flexspec` (FlexSpec): drafters made from a target (`tandem draft train`); preset `flexspec`.

Nothing else in the package knows these modules, but the command that makes drafters. What of DRAGON and SpecFed became
Tandem itself is in the packages of the core.
"""
