"""FlexSpec's drafters, made from a target, of a frozen trunk and a head that learns: `tandem model draft`.

A drafter is an ordinary model's folder. How drafts are sent and verified is the preset `flexspec`.
"""
