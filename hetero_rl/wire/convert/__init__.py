"""Pure functions between protobuf messages and frozen values, by subject.

`x_to_proto` packs a value of this side. `x_from_proto` unpacks a message that came over the network: it raises
`InvalidMessageError` naming the field for an unknown enum value, a missing submessage, a column of another type or
length and bytes that do not decode. What only the receiver can judge (limits, vocabulary, known versions) is checked
afterwards by `hetero_rl.wire.validation`.
"""
