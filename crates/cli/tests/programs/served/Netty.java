import io.netty.bootstrap.ServerBootstrap;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.EventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.epoll.EpollIoHandler;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.channel.nio.NioIoHandler;
import io.netty.channel.socket.ChannelInputShutdownEvent;
import io.netty.channel.socket.DuplexChannel;
import io.netty.channel.socket.SocketChannel;
import io.netty.channel.socket.nio.NioServerSocketChannel;

/** Sends back all that it gets, then ends its direction: `Netty nio|epoll PORT`. */
public class Netty {
    static class Echo extends ChannelInboundHandlerAdapter {
        private void fit(ChannelHandlerContext context) {
            // It reads no more than its peer takes.
            context.channel().config().setAutoRead(context.channel().isWritable());
        }

        @Override
        public void channelRead(ChannelHandlerContext context, Object message) {
            context.writeAndFlush(message);
            fit(context);
        }

        @Override
        public void channelWritabilityChanged(ChannelHandlerContext context) {
            fit(context);
        }

        @Override
        public void userEventTriggered(ChannelHandlerContext context, Object event) {
            if (event instanceof ChannelInputShutdownEvent) {
                context.writeAndFlush(context.alloc().buffer(0)).addListener(
                    done -> ((DuplexChannel) context.channel()).shutdownOutput().addListener(ended -> context.close()));
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        boolean epoll = arguments[0].equals("epoll");
        EventLoopGroup group = new MultiThreadIoEventLoopGroup(2, epoll ? EpollIoHandler.newFactory() : NioIoHandler.newFactory());
        new ServerBootstrap()
            .group(group)
            .channel(epoll ? EpollServerSocketChannel.class : NioServerSocketChannel.class)
            .childOption(ChannelOption.ALLOW_HALF_CLOSURE, true)
            .childHandler(new ChannelInitializer<SocketChannel>() {
                @Override
                protected void initChannel(SocketChannel channel) {
                    channel.pipeline().addLast(new Echo());
                }
            })
            .bind("0.0.0.0", Integer.parseInt(arguments[1]))
            .sync()
            .channel()
            .closeFuture()
            .sync();
    }
}
