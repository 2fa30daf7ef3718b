"""The systems of papers, as anybody's plugins are written: codecs, policies, and the commands that measure and train.

- `codecs` (QS, SQS, SpecFed): a lattice, K-SQS and C-SQS, and the likeliest tokens; presets `qs` and `sqs`.
- `lengths` (QS, FlexSpec): policies for the length of proposals; presets `qs` and `flexspec`.
- `flexspec` (FlexSpec): drafters made from a target (`tandem model draft`).
- `measure` (DRAGON 5.2): the offline stage of the profiler (`tandem model profile`).

What of DRAGON and SpecFed became Tandem itself is in the packages of the core.
"""
