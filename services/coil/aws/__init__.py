"""What a node asks of AWS: EC2's API for its network interfaces, within a budget of calls.

The only room that imports the AWS library.
"""
