"""What is asked of OpenStack: Neutron's and Octavia's APIs, through openstacksdk in threads.

The only room that imports the OpenStack library.
"""
